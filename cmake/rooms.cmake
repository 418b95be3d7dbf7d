# A room is one static library made of src/<room>/**.cc. Its headers are included as "<room>/<file>.h".

function(trireme_warnings target)
  target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-Wall;-Wextra;-Wconversion;-Wshadow;-Werror>
                                           $<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-Wall,-Wextra,-Wshadow -Werror=all-warnings>)
  if(TRIREME_SANITIZE)
    target_compile_options(${target} PRIVATE -fsanitize=${TRIREME_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer)
    target_link_options(${target} PRIVATE -fsanitize=${TRIREME_SANITIZE})
  endif()
endfunction()

# trireme_room(<name> DEPS <targets>...): adds the library when the room has sources; a room without any is header-only.
function(trireme_room name)
  cmake_parse_arguments(ARG "" "" "DEPS" ${ARGN})
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/${name}/*.cc)
  # <file>_cuda.cu and <file>_none.cc are the same door with and without a GPU.
  if(TRIREME_CUDA)
    file(GLOB_RECURSE cuda_sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/${name}/*.cu)
    list(FILTER sources EXCLUDE REGEX "_none\\.cc$")
    list(APPEND sources ${cuda_sources})
  endif()
  if(sources)
    add_library(${name} STATIC ${sources})
    target_include_directories(${name} PUBLIC ${PROJECT_SOURCE_DIR}/src)
    target_link_libraries(${name} PUBLIC ${ARG_DEPS})
    trireme_warnings(${name})
    if(TRIREME_CUDA AND cuda_sources)
      target_link_libraries(${name} PUBLIC CUDA::cudart_static)
    endif()
  else()
    add_library(${name} INTERFACE)
    target_include_directories(${name} INTERFACE ${PROJECT_SOURCE_DIR}/src)
    target_link_libraries(${name} INTERFACE ${ARG_DEPS})
  endif()
  foreach(isa IN ITEMS avx2 avx512 amx)
    file(GLOB isa_sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/${name}/cpu/*_${isa}.cc)
    if(isa_sources)
      set_source_files_properties(${isa_sources} PROPERTIES COMPILE_OPTIONS "${TRIREME_FLAGS_${isa}};${TRIREME_KERNEL_SANITIZE}")
    endif()
  endforeach()
endfunction()

# Kernels of one instruction set live in files that end in its name; only those files get its flags.
set(TRIREME_FLAGS_avx2 -mavx2 -mfma -mf16c)
set(TRIREME_FLAGS_avx512 -mavx512f -mavx512bw -mavx512vl -mavx512dq -mfma -mprefer-vector-width=512)
set(TRIREME_FLAGS_amx ${TRIREME_FLAGS_avx512} -mamx-tile -mamx-bf16)

# Kernels are long unrolled functions full of references that only inlining removes; checks of each of those take the compiler
# minutes and gigabytes a file. Their loads and stores stay checked.
if(TRIREME_SANITIZE MATCHES "address")
  set(TRIREME_KERNEL_SANITIZE -fno-sanitize=undefined -fno-sanitize-address-use-after-scope)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    list(APPEND TRIREME_KERNEL_SANITIZE --param=asan-stack=0)
  endif()
endif()
